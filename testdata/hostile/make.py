"""Makes the hostile inputs beside it. Every file is small; what it asks for is not. Run: python3 make.py"""
import gzip, io, json, os, struct, zlib

here = os.path.dirname(os.path.abspath(__file__))


def put(name, data):
    with open(os.path.join(here, name), "wb") as f:
        f.write(data)


def s(text):
    data = text if isinstance(text, bytes) else text.encode()
    return b"\x8c" + bytes([len(data)]) + data


def i(n):
    if 0 <= n < 256:
        return b"K" + bytes([n])
    data = n.to_bytes(n.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def d(**entries):
    return b"}(" + b"".join(s(k) + v for k, v in entries.items()) + b"u"


def l(*items):
    return b"](" + b"".join(items) + b"e"


def gz(data):
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0, filename="") as f:
        f.write(data)
    return out.getvalue()


P = b"\x80\x04"
EVENT = dict(action=s("alloc"), addr=i(0x7f0000000000), size=i(512), stream=i(0), time_us=i(1))


def snapshot(*events, segments=b"]"):
    return P + d(segments=segments, device_traces=l(l(*events))) + b"."


def event(**changes):
    return d(**{**EVENT, **changes})


BLOCK = dict(address=i(1 << 21), size=i(1 << 21), state=s("inactive"), requested_size=i(0), frames=b"]")


def segment(blocks=None, **changes):
    fields = dict(device=i(0), address=i(1 << 21), total_size=i(1 << 21), stream=i(0), segment_type=s("small"))
    return d(**{**fields, **changes, "blocks": l(d(**BLOCK)) if blocks is None else blocks})


# ---- not a trace at all
put("empty", b"")
put("png", b"\x89PNG\r\n\x1a\n" + bytes(40))
put("elf", b"\x7fELF\x02\x01\x01" + bytes(60))
put("checkpoint_zip", b"PK\x03\x04" + bytes(40))
put("checkpoint_old", P[:1] + b"\x02" + b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + b"\x80\x02M\xe9\x03.")
put("html", b"<!doctype html><title>report</title>")
put("prose", b"Once upon a time there was a trace.\n")
put("zeros", bytes(300))
put("protocol_9", b"\x80\x09}.")
put("protocol_0", b"(dp0\nS'segments'\np1\n(lp2\ns.")
put("text_opcode", b"\x80\x02I42\n.")
put("one_byte", b"\x80")
put("gtrace_magic_only", b"GTRACE")
put("gtrace_garbage", b"GTRACE" + bytes(range(256)))

# ---- code
for name, code in dict(
    GLOBAL=b"cos\nsystem\n", STACK_GLOBAL=s("os") + s("system") + b"\x93", REDUCE=b")R", BUILD=b"}}b", INST=b"(ios\nsystem\n",
    OBJ=b"(}o", NEWOBJ=b"))\x81", NEWOBJ_EX=b"))}\x92", EXT1=b"\x82\x01", EXT2=b"\x83\x01\x00", EXT4=b"\x84\x01\x00\x00\x00",
    PERSID=b"P1\n", BINPERSID=b"K\x01Q", NEXT_BUFFER=b"\x97", READONLY_BUFFER=b"N\x98",
).items():
    put("code_" + name, P + code + b".")
put("code_inside_event", snapshot(d(action=s("alloc"), addr=b"cos\ngetpid\n)R", size=i(1))))

# ---- truncated and malformed pickles
WHOLE = snapshot(event(), event(action=s("free_requested")), segments=l(segment()))
put("cut_in_opcode", WHOLE[:-30])
put("cut_in_string", P + b"}(\x8c\x20segm")
put("no_stop", WHOLE[:-1])
put("cut_after_proto", P)
put("stack_underflow", P + b"a.")
put("mark_missing", P + b"]e.")
put("pop_below_mark", P + b"](0e00.")
put("memo_missing", P + b"h\x05.")
put("odd_setitems", P + b"}(" + s("segments") + b"u.")
put("append_to_int", P + b"K\x01K\x02a.")
put("setitem_in_list", P + b"]K\x01K\x02s.")
put("unknown_opcode", P + b"\xff.")
put("top_is_an_int", P + b"K\x07.")
put("top_is_an_event", P + event() + b".")
put("top_is_another_dict", P + d(model=b"N", epoch=i(3)) + b".")
put("list_of_ints", P + l(i(1), i(2)) + b".")
put("empty_snapshot", P + d(segments=b"]", device_traces=l(b"]")) + b".")
put("empty_list", P + b"].")

# ---- bombs
put("memo_index_4g", P + b"}r\xff\xff\xff\xff.")
put("string_of_2_60", P + b"\x8d" + struct.pack("<Q", 1 << 60) + b"x")
put("string_of_4g", P + b"X\xff\xff\xff\xffx")
put("bytes_of_2_60", P + b"\x8e" + struct.pack("<Q", 1 << 60) + b"x")
put("long4_of_2g", P + b"\x8b\xff\xff\xff\x7f\x01")
put("long4_negative_length", P + b"\x8b\xff\xff\xff\xff\x01")
put("deep_lists", P + b"]" * 20000 + b"a" * 19999 + b".")
put("deep_tuples", P + b"N" + b"\x85" * 20000 + b".")
put("deep_dicts", P + b"}K\x00" * 20000 + b"N" + b"s" * 20000 + b".")
put("many_marks", P + b"(" * 20000 + b".")
put("list_in_itself", P + b"]\x94h\x00a.")
put("dict_in_itself", P + b"}\x94(" + s("segments") + b"h\x00" + s("device_traces") + b"h\x00u.")
put("event_in_itself", P + d(segments=b"]", device_traces=l(l(
    b"}q\x00(" + s("action") + s("alloc") + s("addr") + i(1) + s("size") + i(1) + s("frames") + b"h\x00u"))) + b".")
laughs = P + b"]\x94"
for level in range(60):
    laughs += b"](" + b"h" + bytes([level]) + b"h" + bytes([level]) + b"e\x94"
put("laughs_lists", laughs + b".")
shared = b"](" + event() * 1000 + b"eq\x00"
put("laughs_devices", P + b"}(" + s("segments") + b"]" + s("device_traces") + b"](" + shared + b"h\x00" * 30000 + b"eu.")
blocks = b"](" + d(**BLOCK) * 1000 + b"eq\x01"
put("laughs_blocks", P + b"}(" + s("segments") + b"](" + segment(blocks) + segment(b"h\x01") * 500 + b"eu.")
put("laughs_settings", P + b"}(" + s("segments") + b"]" + s("allocator_settings") + b"}(" + s("x") + laughs[2:] + b"uu.")
put("bomb_gzip_zeros", gz(bytes(32 << 20)))
put("bomb_gzip_memo", gz(P + b"N" + b"\x94" * (24 << 20)))
put("bomb_gzip_stack", gz(P + b"(" + b"N" * (24 << 20)))
put("bomb_gzip_objects", gz(P + b"](" + b"]\x94" * (12 << 20)))
put("bomb_gzip_list", gz(P + b"]" + b"Na" * (12 << 20)))
put("bomb_gzip_json_string", gz(b'{"segments": "' + b"x" * (32 << 20)))
put("bomb_gzip_json_number", gz(b'{"segments": ' + b"1" * (32 << 20)))
put("bomb_gzip_json_list", gz(b'{"segments": [' + b"1," * (12 << 20)))
put("bomb_gzip_line", gz(b"id,lower,upper,size\n" + b"x" * (32 << 20)))
put("gzip_three_times", gz(gz(gz(WHOLE))))
put("gzip_cut", gz(WHOLE)[:-12])
bad = bytearray(gz(WHOLE))
bad[-6] ^= 0xff
put("gzip_wrong_checksum", bytes(bad))
put("gzip_header_only", b"\x1f\x8b\x08\x00")
put("gzip_of_nothing", gz(b""))
put("zstd_garbage", b"\x28\xb5\x2f\xfd" + bytes(range(100)))
put("zstd_magic_only", b"\x28\xb5\x2f\xfd")
put("zstd_window_2_41", b"\x28\xb5\x2f\xfd\x00\xff\x01\x00\x00")

# ---- values that no run has
put("size_negative", snapshot(event(size=i(-1))))
put("size_over_2_60", snapshot(event(size=i((1 << 60) + 1))))
put("size_of_200_bits", snapshot(event(size=i(1 << 200))))
put("size_is_text", snapshot(event(size=s("512"))))
put("addr_of_200_bits", snapshot(event(addr=i(1 << 200))))
put("addr_past_the_end", snapshot(event(addr=i((1 << 64) - 8))))
put("time_negative", snapshot(event(time_us=i(-5))))
put("event_without_addr", snapshot(d(action=s("alloc"), size=i(1))))
put("event_without_size", snapshot(d(action=s("alloc"), addr=i(1))))
put("action_is_a_number", snapshot(event(action=i(1))))
put("streams_70000", gz(snapshot(*(d(action=s("alloc"), addr=i(n * 512), size=i(1), stream=i(n + 300)) for n in range(70000)))))
put("segment_without_size", snapshot(segments=l(d(blocks=b"]", address=i(1)))))
put("segment_past_the_end", snapshot(segments=l(segment(address=i((1 << 64) - 1)))))
put("segment_device_huge", snapshot(segments=l(segment(device=i(1 << 40)))))
put("block_past_the_end", snapshot(segments=l(segment(l(d(**{**BLOCK, "address": i((1 << 64) - 1)}))))))
put("block_of_unknown_state", snapshot(segments=l(segment(l(d(**{**BLOCK, "state": s("gone")}))))))
put("block_size_negative", snapshot(segments=l(segment(l(d(**{**BLOCK, "size": i(-1)}))))))
put("frames_of_mixed_kind", snapshot(event(frames=l(d(name=s("f"), filename=s("g"), line=i(1)), i(3)))))
put("event_changed_after_use", P + b"}(" + s("segments") + b"]" + s("device_traces") + b"](](" +
    b"}q\x00(" + b"".join(s(k) + v for k, v in EVENT.items()) + b"u" + b"e" + b"h\x00(" + s("size") + i(9) + b"u" + b"eu.")

# ---- odd, but to be accepted with a note
put("accepted_trailing_bytes", WHOLE + b"more")
put("accepted_name_not_utf8", snapshot(event(frames=l(d(name=s(b"f\xff\xfe"), filename=s(b"\xc3("), line=i(1)))), segments=b"]"))
put("accepted_unknown_action", snapshot(event(), event(action=s("worker_alloc"))))
put("accepted_memo_overwritten", P + b"}(" + s("segments") + b"]" + s("device_traces") + b"](](" +
    b"}(" + s("action") + b"q\x00" + s("alloc") + b"q\x01" + s("addr") + b"q\x02" + i(512) + s("size") + b"q\x03" + i(8) + b"u" +
    b"}(h\x00h\x01h\x02" + i(4096) + b"h\x03" + i(16) + b"u" +
    s("size") + b"q\x020" + s("addr") + b"q\x030" + b"}(h\x00h\x01h\x02" + i(32) + b"h\x03" + i(8192) + b"u" + b"eeu.")

# ---- JSON
put("json_cut", b'{"segments": [], "device_traces": [[{"action": "al')
put("json_deep", b'{"segments": ' + b"[" * 5000)
put("json_wrong_size", json.dumps({"device_traces": [[{"action": "alloc", "addr": 1, "size": -4}]]}).encode())
put("json_huge_size", json.dumps({"device_traces": [[{"action": "alloc", "addr": 1, "size": 1 << 70}]]}).encode())
put("json_text_after", b'{"segments": []} and more')
put("json_not_a_snapshot", b'{"traceEvents": []}')
put("json_number", b"[1, 2, 3]")
put("json_bad_syntax", b'{"segments": [,]}')
put("json_bad_utf8", b'{"segments": ["\xff\xfe"]}')

# ---- CSV
put("rmm_bad_size", b"Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00:000000,allocate,0x10,many,0x0\n")
put("rmm_size_over_2_60", b"Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x10,1152921504606846977,0x0\n")
put("rmm_negative", b"Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x10,-5,0x0\n")
put("rmm_few_fields", b"Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x10\n")
put("rmm_unknown_action", b"Thread,Time,Action,Pointer,Size,Stream\n1,0,explode,0x10,5,0\n")
put("rmm_past_the_end", b"Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0xffffffffffffffff,5,0\n")
put("rmm_no_rows", b"Thread,Time,Action,Pointer,Size,Stream\n")
put("rmm_bad_utf8", b"Thread,Time,Action,Pointer,Size,Stream\n1,0,\xff\xfe,0x10,5,0\n")
put("minimalloc_empty_lifetime", b"id,lower,upper,size\n1,5,5,10\n")
put("minimalloc_bad_time", b"id,lower,upper,size\n1,five,6,10\n")
put("minimalloc_many_fields", b"id,lower,upper,size\n1,5,6,10,11,12\n")
put("minimalloc_size_over_2_60", b"id,lower,upper,size\n1,5,6,99999999999999999999\n")
put("minimalloc_sum_past_the_end", b"id,lower,upper,size\n" + b"".join(b"%d,1,2,1152921504606846976\n" % n for n in range(20)))
put("minimalloc_no_rows", b"id,lower,upper,size\n")
