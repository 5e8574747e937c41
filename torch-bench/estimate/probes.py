"""Single operators, and every allocation that each makes. The rules in card/ are fitted to them.

`probes()` gives (name, run) pairs; `record(run)` runs one forward, backward and without gradients on the current
device, and returns the sizes that it allocated in each, in order.
"""

import itertools

import torch
from torch import nn

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def sizes(call):
    """The allocations and frees of a call: sizes, freed ones negative; the call's result comes first."""
    torch.cuda.memory._record_memory_history(max_entries=20000, context=None)
    out = call()
    torch.cuda.synchronize()
    events = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(enabled=None)
    return out, [event["size"] if event["action"] == "alloc" else -event["size"] for event in events if event["action"] in ("alloc", "free_completed")]


def record(make):
    """The sizes of an operator's passes; make() is a function of no arguments whose result is a tensor."""
    call = make()
    with torch.no_grad():
        _, infer = sizes(call)
    out, forward = sizes(call)
    found = {"infer": infer, "forward": forward}
    first = out[0] if isinstance(out, (tuple, list)) else out
    if first.requires_grad:
        slope = torch.ones_like(first)
        _, found["backward"] = sizes(lambda: first.backward(slope))
    return found


def convolution(dims, dtype, inputs, outputs, kernel, pixels, batch, stride=1, dilation=1, groups=1, transposed=False, last=False, bias=True):
    kinds = {
        (1, False): nn.Conv1d,
        (2, False): nn.Conv2d,
        (3, False): nn.Conv3d,
        (1, True): nn.ConvTranspose1d,
        (2, True): nn.ConvTranspose2d,
        (3, True): nn.ConvTranspose3d,
    }
    kind = kinds[dims, transposed]

    def make():
        padding = dilation * (kernel // 2) if not transposed or kernel % 2 else (kernel - stride) // 2
        layer = kind(inputs, outputs, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups, bias=bias).to("cuda", dtype)
        x = torch.randn(batch, inputs, *[pixels] * dims, device="cuda", dtype=dtype)
        if last:
            layout = torch.channels_last if dims == 2 else torch.channels_last_3d
            layer, x = layer.to(memory_format=layout), x.contiguous(memory_format=layout)
        x.requires_grad_()
        return lambda: layer(x)

    return make


def convolutions():
    plans = []
    for name, inputs, outputs, kernel, pixels, batch, more in (
        ("3x3", 64, 64, 3, 56, 32, {}), ("3x3", 128, 128, 3, 28, 32, {}), ("3x3", 256, 256, 3, 14, 32, {}), ("3x3", 512, 512, 3, 7, 32, {}),
        ("3x3", 64, 64, 3, 128, 8, {}), ("3x3", 32, 64, 3, 96, 16, {}), ("3x3", 128, 256, 3, 64, 4, {}), ("3x3", 96, 96, 3, 48, 8, {}),
        ("3x3", 16, 16, 3, 224, 8, {}), ("3x3", 512, 256, 3, 32, 8, {}), ("3x3", 48, 48, 3, 100, 5, {}), ("3x3", 256, 64, 3, 112, 4, {}),
        ("stride", 64, 128, 3, 56, 32, {"stride": 2}), ("stride", 256, 512, 3, 14, 32, {"stride": 2}), ("stride", 32, 64, 3, 112, 16, {"stride": 2}),
        ("first", 3, 64, 7, 224, 32, {"stride": 2}), ("first", 3, 32, 3, 224, 32, {"stride": 2}), ("first", 3, 64, 3, 224, 8, {}), ("first", 3, 96, 4, 224, 16, {"stride": 4}),
        ("first", 3, 768, 16, 224, 16, {"stride": 16}), ("last", 64, 3, 3, 128, 8, {}), ("last", 64, 21, 1, 64, 16, {}), ("first", 1, 32, 5, 64, 64, {}),
        ("1x1", 256, 64, 1, 56, 32, {}), ("1x1", 64, 256, 1, 56, 32, {}), ("1x1", 1024, 256, 1, 14, 32, {}), ("1x1", 2048, 512, 1, 7, 32, {}),
        ("1x1", 16, 96, 1, 112, 48, {}), ("1x1", 96, 24, 1, 56, 48, {}), ("1x1", 240, 40, 1, 28, 48, {}), ("1x1", 96, 4, 1, 1, 48, {}), ("1x1", 672, 112, 1, 14, 64, {}),
        ("1x1-stride", 256, 512, 1, 56, 32, {"stride": 2}), ("1x1-stride", 512, 1024, 1, 28, 32, {"stride": 2}), ("1x1-stride", 64, 128, 1, 56, 16, {"stride": 2}),
        ("5x5", 48, 96, 5, 48, 16, {}), ("5x5", 32, 64, 5, 28, 64, {}), ("7x7", 64, 64, 7, 32, 8, {}), ("9x9", 32, 3, 9, 128, 4, {}),
        ("dilated", 256, 128, 3, 32, 16, {"dilation": 6}), ("dilated", 256, 128, 3, 32, 16, {"dilation": 12}), ("dilated", 64, 64, 3, 64, 8, {"dilation": 2}),
        ("grouped", 128, 128, 3, 40, 32, {"groups": 32}), ("grouped", 256, 256, 3, 20, 32, {"groups": 32}), ("grouped", 256, 256, 3, 20, 32, {"groups": 4}),
        ("grouped", 512, 512, 3, 10, 32, {"groups": 32, "stride": 2}), ("grouped", 58, 58, 1, 28, 32, {"groups": 2}),
        ("depthwise", 96, 96, 3, 112, 48, {"groups": 96, "stride": 2}), ("depthwise", 144, 144, 3, 56, 48, {"groups": 144}), ("depthwise", 240, 240, 5, 28, 48, {"groups": 240}),
        ("depthwise", 240, 240, 5, 28, 64, {"groups": 240, "stride": 2}), ("depthwise", 480, 480, 3, 14, 64, {"groups": 480}), ("depthwise", 672, 672, 5, 14, 64, {"groups": 672, "stride": 2}),
        ("depthwise", 96, 96, 7, 56, 24, {"groups": 96}), ("depthwise", 192, 192, 7, 28, 24, {"groups": 192}), ("depthwise", 768, 768, 7, 7, 24, {"groups": 768}), ("depthwise", 32, 32, 3, 112, 64, {"groups": 32}),
        ("transposed", 128, 64, 4, 32, 32, {"stride": 2, "transposed": True}), ("transposed", 512, 256, 4, 8, 64, {"stride": 2, "transposed": True}),
        ("transposed", 64, 3, 4, 32, 64, {"stride": 2, "transposed": True}), ("transposed", 256, 128, 2, 32, 16, {"stride": 2, "transposed": True}),
        ("transposed", 128, 512, 4, 1, 64, {"transposed": True}),
    ):  # fmt: skip
        for dtype, last in (("f32", False), ("bf16", False), ("f16", False), ("bf16", True), ("f32", True)):
            plans.append(
                (
                    f"conv2d {name} {inputs} {outputs} {kernel} {pixels} {batch} {more} {dtype}{' last' if last else ''}",
                    convolution(2, DTYPES[dtype], inputs, outputs, kernel, pixels, batch, last=last, **more),
                )
            )
    for name, inputs, outputs, kernel, pixels, batch, more in (
        ("plain", 80, 512, 5, 600, 16, {"stride": 2}), ("plain", 512, 512, 5, 300, 16, {}), ("plain", 256, 256, 3, 2000, 16, {}), ("point", 64, 256, 1, 4000, 32, {}), ("point", 128, 1024, 1, 1024, 16, {}),
        ("dilated", 96, 192, 2, 8000, 4, {"dilation": 64}), ("dilated", 256, 256, 3, 1000, 32, {"dilation": 8}), ("first", 1, 512, 10, 32000, 4, {"stride": 5, "bias": False}), ("plain", 512, 512, 3, 6000, 4, {"stride": 2, "bias": False}),
        ("depthwise", 256, 256, 4, 512, 16, {"groups": 256}), ("depthwise", 512, 512, 31, 400, 8, {"groups": 512}), ("grouped", 768, 768, 128, 149, 8, {"groups": 16}), ("transposed", 256, 128, 4, 500, 16, {"stride": 2, "transposed": True}),
    ):  # fmt: skip
        for dtype in ("f32", "bf16", "f16"):
            plans.append(
                (
                    f"conv1d {name} {inputs} {outputs} {kernel} {pixels} {batch} {more} {dtype}",
                    convolution(1, DTYPES[dtype], inputs, outputs, kernel, pixels, batch, **more),
                )
            )
    for name, inputs, outputs, kernel, pixels, batch, more in (
        ("3x3x3", 1, 16, 3, 64, 4, {}), ("3x3x3", 16, 16, 3, 64, 4, {}), ("3x3x3", 32, 32, 3, 32, 4, {}), ("3x3x3", 64, 64, 3, 16, 4, {}), ("3x3x3", 128, 128, 3, 8, 4, {}), ("3x3x3", 64, 64, 3, 28, 4, {}),
        ("stride", 64, 128, 3, 28, 4, {"stride": 2}), ("point", 64, 128, 1, 28, 4, {"stride": 2}), ("transposed", 128, 64, 2, 8, 4, {"stride": 2, "transposed": True}), ("transposed", 32, 16, 2, 32, 4, {"stride": 2, "transposed": True}), ("first", 3, 64, 7, 48, 4, {"stride": 2}),
    ):  # fmt: skip
        for dtype, last in (("f32", False), ("bf16", False), ("f16", False), ("bf16", True)):
            plans.append(
                (
                    f"conv3d {name} {inputs} {outputs} {kernel} {pixels} {batch} {more} {dtype}{' last' if last else ''}",
                    convolution(3, DTYPES[dtype], inputs, outputs, kernel, pixels, batch, last=last, **more),
                )
            )
    return plans


def linear_algebra():
    def matrix(batch, rows, columns, dtype, symmetric):
        shape = (*batch, rows, columns)

        def make_with(function):
            def make():
                x = torch.randn(shape, device="cuda", dtype=dtype)
                if symmetric:
                    x = x @ x.mT.conj() + rows * torch.eye(rows, device="cuda", dtype=dtype)
                x.requires_grad_()
                return lambda: function(x)

            return make

        return make_with

    plans = []
    square = [((), 64), ((), 256), ((), 1000), ((), 3000), ((4,), 64), ((64,), 32), ((256,), 64), ((16,), 300), ((512,), 16), ((3,), 700)]
    functions = {
        "cholesky": (torch.linalg.cholesky, True), "eigh": (torch.linalg.eigh, True), "eigvalsh": (torch.linalg.eigvalsh, True), "svd": (lambda x: torch.linalg.svd(x, full_matrices=False).S, False),
        "svdvals": (torch.linalg.svdvals, False), "qr": (torch.linalg.qr, False), "inv": (torch.linalg.inv, True), "slogdet": (lambda x: torch.linalg.slogdet(x)[1], True),
        "solve": (lambda x: torch.linalg.solve(x, x), True), "matrix_exp": (torch.linalg.matrix_exp, True), "pinv": (torch.linalg.pinv, False), "eig": (lambda x: torch.linalg.eig(x)[0].abs(), False),
        "cholesky_solve": (lambda x: torch.cholesky_solve(x, torch.linalg.cholesky(x)), True), "cholesky_inverse": (torch.cholesky_inverse, True), "lstsq": (lambda x: torch.linalg.lstsq(x, x).solution, False),
        "lu_factor": (torch.linalg.lu_factor, True), "householder": (lambda x: torch.linalg.householder_product(x, x[..., 0, :]), False), "ldl": (lambda x: torch.linalg.ldl_factor(x)[0], True),
    }  # fmt: skip
    for (batch, rows), (name, (function, symmetric)) in itertools.product(square, functions.items()):
        if rows == 3000 and name in ("eig", "svd", "svdvals", "pinv", "matrix_exp"):
            continue
        if name == "eig" and (rows > 300 or (batch and batch[0] > 16)):
            continue
        for dtype in (torch.float32, torch.float64) if rows in (64, 256) else (torch.float32,):
            plans.append((f"linalg {name} {list(batch)} {rows} {rows} {str(dtype)[6:]}", matrix(batch, rows, rows, dtype, symmetric)(function)))
    for batch, rows, columns in (((), 64, 256), ((), 1000, 200), ((128,), 64, 256), ((32,), 200, 50), ((), 4096, 512)):
        for name in ("svd", "svdvals", "qr", "pinv"):
            plans.append((f"linalg {name} {list(batch)} {rows} {columns} float32", matrix(batch, rows, columns, torch.float32, False)(functions[name][0])))
    return plans


def fourier():
    plans = []
    for length in (64, 100, 480, 509, 512, 1000, 1021, 2048, 4096, 5000, 8192, 8191, 10000, 16384, 30000, 32768, 48000, 65536, 131072, 262144, 1000000):
        batch = max(1, (1 << 21) // length)
        for name, function, is_complex in (("fft", torch.fft.fft, True), ("rfft", torch.fft.rfft, False)):

            def make(function=function, is_complex=is_complex, batch=batch, length=length):
                x = torch.randn(batch, length, device="cuda", dtype=torch.complex64 if is_complex else torch.float32, requires_grad=True)
                return lambda: torch.view_as_real(function(x))

            plans.append((f"fft {name} {batch} {length}", make))
    for shape in (
        (16, 48, 128, 128),
        (16, 509, 480),
        (8, 64, 64, 64),
        (4, 3, 255, 257),
        (4, 16, 1024, 1024),
        (2, 4096, 768),
        (8, 32, 32, 32, 32),
        (2, 8192, 512),
        (16, 512, 509),
    ):
        for name, function in (("fft2", torch.fft.fft2), ("rfft2", torch.fft.rfft2), ("fftn", lambda x: torch.fft.fftn(x, dim=(-3, -2, -1)))):

            def make(function=function, shape=shape):
                x = torch.randn(shape, device="cuda", requires_grad=True)
                return lambda: torch.view_as_real(function(x))

            plans.append((f"fft {name} {list(shape)}", make))
    return plans


def recurrent():
    plans = []
    for kind, steps, batch, width, hidden, layers, both, dropout, packed, projection in (
        (kind, *row, packed, 0)
        for kind in ("LSTM", "GRU", "RNN")
        for packed in (False, True)
        for row in ((64, 16, 256, 512, 1, False, 0.0), (100, 24, 512, 512, 2, False, 0.1), (50, 32, 80, 320, 2, True, 0.1), (120, 48, 300, 512, 1, True, 0.0), (150, 8, 256, 768, 3, False, 0.0), (37, 19, 96, 200, 3, True, 0.2), (80, 64, 512, 512, 2, False, 0.0))
    ):  # fmt: skip
        for dtype in ("f32", "f16"):
            plans.append(
                (
                    f"rnn {kind} {steps} {batch} {width} {hidden} {layers} {both} {dropout} {'packed' if packed else 'plain'} {dtype}",
                    _rnn(kind, steps, batch, width, hidden, layers, both, dropout, packed, projection, DTYPES[dtype]),
                )
            )
    for row in (
        (160, 48, 512, 1024, 2, False, 0.0, False, 320),
        (60, 16, 256, 512, 1, False, 0.0, False, 128),
        (60, 16, 256, 512, 2, True, 0.0, False, 128),
        (100, 8, 128, 256, 3, False, 0.1, False, 64),
    ):
        plans.append((f"rnn LSTM projected {row}", _rnn("LSTM", *row, torch.float32)))
    return plans


def _rnn(kind, steps, batch, width, hidden, layers, both, dropout, packed, projection, dtype):
    def make():
        layer = getattr(nn, kind)(
            width, hidden, num_layers=layers, bidirectional=both, dropout=dropout, **({"proj_size": projection} if projection else {})
        ).to("cuda", dtype)
        x = torch.randn(steps, batch, width, device="cuda", dtype=dtype, requires_grad=True)
        if not packed:
            return lambda: layer(x)[0]
        lengths = torch.linspace(steps, steps // 3, batch).long()
        together = nn.utils.rnn.pack_padded_sequence(x.detach(), lengths)
        flat = together.data.requires_grad_()
        given = nn.utils.rnn.PackedSequence(flat, together.batch_sizes)
        return lambda: layer(given)[0].data

    return make


def others():
    plans = []
    for steps, batch, labels, length in ((600, 32, 64, 80), (200, 16, 32, 20), (1000, 8, 128, 100), (100, 64, 1000, 30)):
        for kind in ("cudnn", "native"):

            def make(steps=steps, batch=batch, labels=labels, length=length, kind=kind):
                scores = torch.randn(steps, batch, labels, device="cuda", requires_grad=True)
                whole = torch.int32 if kind == "cudnn" else torch.int64
                targets = (
                    torch.randint(1, labels, (batch * length,), dtype=whole) if kind == "cudnn" else torch.randint(1, labels, (batch, length), device="cuda")
                )
                return lambda: torch.ctc_loss(scores.log_softmax(-1), targets, [steps] * batch, [length] * batch)

            plans.append((f"ctc {kind} {steps} {batch} {labels} {length}", make))
    for channels, pixels, batch, dtype in itertools.product((16, 64, 96, 240, 512), (7, 28, 56, 112), (8, 48), ("f32", "bf16", "f16")):
        if channels * pixels * pixels * batch > 1 << 27:
            continue

        def make(channels=channels, pixels=pixels, batch=batch, dtype=dtype):
            layer = nn.BatchNorm2d(channels).to("cuda")
            x = torch.randn(batch, channels, pixels, pixels, device="cuda", dtype=DTYPES[dtype]).contiguous(memory_format=torch.channels_last).requires_grad_()
            return lambda: layer(x)

        plans.append((f"batchnorm last {channels} {pixels} {batch} {dtype}", make))
    for rows, filled, width, kind in itertools.product((10000, 40000), (100000, 400000), (64, 256), ("coo", "csr")):

        def make(rows=rows, filled=filled, width=width, kind=kind):
            matrix = torch.sparse_coo_tensor(torch.randint(0, rows, (2, filled), device="cuda"), torch.ones(filled, device="cuda"), (rows, rows)).coalesce()
            matrix = matrix if kind == "coo" else matrix.to_sparse_csr()
            x = torch.randn(rows, width, device="cuda", requires_grad=kind == "coo")
            return lambda: torch.sparse.mm(matrix, x)

        plans.append((f"sparse mm {kind} {rows} {filled} {width}", make))
    return plans


def probes():
    return [*convolutions(), *recurrent(), *linear_algebra(), *fourier(), *others()]
