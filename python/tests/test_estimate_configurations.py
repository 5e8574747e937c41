"""`gapless estimate config.json`: models that the installed transformers and diffusers make, batches of each kind, and
refusals.

torch-bench/estimate/architectures.py compares with the measurements of an H200.
"""

import json
import os

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 1000, "torch_dtype": "float32",
}  # fmt: skip
LLAMA_PARAMETERS = 2 * 1000 * 256 + 2 * (4 * 256 * 256 + 3 * 256 * 512 + 2 * 256) + 256


@pytest.fixture
def estimate(estimated, tmp_path):
    """Estimates a configuration, or the file or name of one."""

    def run(configuration, *options):
        path = configuration
        if isinstance(configuration, dict):
            path = tmp_path / "config.json"
            path.write_text(json.dumps(configuration))
        return estimated(*options, path, imports=["transformers.models.auto.modeling_auto"])

    return run


# ---- what a configuration takes ----


def test_a_configuration_is_trained_by_the_library_itself(estimate):
    code, found, err = estimate(LLAMA, "--batch", "4", "--seq", "128", "--precision", "fp32")
    assert code == 0, err
    said = " ".join(found["assumptions"])
    assert "LlamaForCausalLM of transformers" in said and f"{LLAMA_PARAMETERS:,} parameters" in said
    assert "training in fp32" in said and "input_ids 4 x 128, labels = input_ids" in said and "the loss is the model's own" in said
    # Each parameter's block has whole units of 512 bytes.
    assert LLAMA_PARAMETERS * 4 <= found["kinds"]["parameters"] < LLAMA_PARAMETERS * 4 * 1.01
    assert found["kinds"]["optimizer states"] >= 2 * LLAMA_PARAMETERS * 4
    assert found["steps"] == 3 and found["fits"] is True


def test_flags_have_the_meaning_that_they_have_for_fit(estimate):
    def peak(*options):
        code, found, err = estimate(LLAMA, "--batch", "8", "--seq", "512", *options)
        assert code == 0, err
        return found["kinds"], found["peak_allocated"], " ".join(found["assumptions"])

    plain, most, _ = peak()
    assert plain["parameters"] < LLAMA_PARAMETERS * 2 * 1.01
    assert peak("--checkpointing", "full")[1] < most
    assert peak("--optimizer", "sgd")[0]["optimizer states"] == 0
    assert peak("--optimizer", "muon")[0]["optimizer states"] < plain["optimizer states"]
    assert peak("--optimizer", "lion")[0]["optimizer states"] < plain["optimizer states"]
    # Gradients of the first batch are there when the second one runs.
    assert peak("--grad-accum", "2")[1] > most
    assert peak("--attention", "eager")[1] > most
    served, less, said = peak("--infer")
    assert less < most and served["gradients"] == served["optimizer states"] == 0 and "use_cache=True" in said


def test_a_class_of_the_library_is_found_whatever_its_case(estimate):
    own = {"architectures": ["MPTForCausalLM"], "auto_map": {"AutoConfig": "configuration_mpt.MPTConfig"}, "model_type": "mpt"}
    code, found, err = estimate({**own, "d_model": 64, "n_layers": 1, "n_heads": 4, "vocab_size": 1000}, "--seq", "64")
    assert code == 0, err
    assert found["assumptions"][0].startswith("MptForCausalLM of transformers")


def test_a_name_that_fit_knows_is_a_configuration(estimate):
    code, found, err = estimate("gpt2-like", "--text", json.dumps({"model_type": "gpt2", "n_layer": 2}), "--seq", "64")
    assert code == 0, err
    assert "GPT2LMHeadModel" in found["assumptions"][0] and "names no class" in found["assumptions"][0]


# One small configuration of each kind, and what its batch must have.
_SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
_TEXT = {**_SMALL, "vocab_size": 1000}
_PICTURES = {**_SMALL, "image_size": 64, "patch_size": 16}
KINDS = {
    "bert": ({"architectures": ["BertForMaskedLM"], "model_type": "bert", **_TEXT}, ["input_ids 2 x 512, labels = input_ids", "model's own"]),
    "roberta": (
        {"architectures": ["RobertaForSequenceClassification"], "model_type": "roberta", "max_position_embeddings": 130, "pad_token_id": 1, **_TEXT},
        # Two of the positions are padding's.
        ["input_ids 2 x 128, labels 2", "model's own"],
    ),
    "t5": (
        {
            "architectures": ["T5ForConditionalGeneration"],
            "model_type": "t5",
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 128,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": 1000,
        },
        ["input_ids 2 x", "labels 2 x", "model's own"],
    ),
    "vit": ({"architectures": ["ViTForImageClassification"], "model_type": "vit", **_PICTURES}, ["pixel_values 2 x 3 x 64 x 64, labels 2", "model's own"]),
    "whisper": (
        {
            "architectures": ["WhisperForConditionalGeneration"],
            "model_type": "whisper",
            "d_model": 64,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_ffn_dim": 128,
            "decoder_ffn_dim": 128,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "vocab_size": 1000,
            "max_source_positions": 50,
            "max_target_positions": 20,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 3,
        },
        ["input_features 2 x 80 x 100", "labels 2 x 20", "model's own"],
    ),
    "wav2vec2": (
        {
            "architectures": ["Wav2Vec2ForCTC"],
            "model_type": "wav2vec2",
            "conv_dim": [32] * 7,
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 4,
            **_TEXT,
        },
        ["input_values 2 x 160000", "labels 2 x 32", "model's own"],
    ),
    "clip": (
        {"architectures": ["CLIPModel"], "model_type": "clip", "text_config": {**_TEXT, "max_position_embeddings": 16}, "vision_config": _PICTURES},
        ["input_ids 2 x 16", "pixel_values 2 x 3 x 64 x 64", "return_loss=True", "model's own"],
    ),
    "llava": (
        {
            "architectures": ["LlavaForConditionalGeneration"],
            "model_type": "llava",
            "image_token_index": 999,
            "text_config": {**_TEXT, "model_type": "llama"},
            "vision_config": {**_PICTURES, "model_type": "clip_vision_model"},
        },
        # 64 / 16 patches a side.
        ["input_ids 2 x 2048, 16 of each row for the picture", "pixel_values 2 x 3 x 64 x 64", "model's own"],
    ),
    "dinov2": ({"architectures": ["Dinov2Model"], "model_type": "dinov2", **_PICTURES}, ["pixel_values", "the mean of its first output"]),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_gets_its_batch(estimate, name):
    keys, wanted = KINDS[name]
    code, found, err = estimate(keys, "--batch", "2", "--steps", "1")
    assert code == 0, err
    said = " ".join(found["assumptions"])
    for words in wanted:
        assert words in said, said


DIFFUSION = {
    "unet": (
        {
            "_class_name": "UNet2DConditionModel",
            "sample_size": 16,
            "block_out_channels": [32, 64],
            "layers_per_block": 1,
            "cross_attention_dim": 32,
            "attention_head_dim": 8,
            "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
            "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
            "norm_num_groups": 8,
        },
        ["sample 2 x 4 x 16 x 16", "encoder_hidden_states 2 x 77 x 32", "noise"],
    ),
    "autoencoder": (
        {
            "_class_name": "AutoencoderKL",
            "sample_size": 64,
            "block_out_channels": [32, 32],
            "norm_num_groups": 8,
            "down_block_types": ["DownEncoderBlock2D"] * 2,
            "up_block_types": ["UpDecoderBlock2D"] * 2,
        },
        ["sample 2 x 3 x 64 x 64"],
    ),
    "flux": (
        {
            "_class_name": "FluxTransformer2DModel",
            "in_channels": 16,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 32,
            "num_attention_heads": 2,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 16,
            "axes_dims_rope": [8, 12, 12],
        },
        # A picture of 512 pixels: latents of 64, two by two.
        ["hidden_states 2 x 1024 x 16", "pooled_projections 2 x 16"],
    ),
}


@pytest.mark.parametrize("name", DIFFUSION)
def test_models_of_diffusers_get_latents(estimate, name):
    pytest.importorskip("diffusers", reason="diffusers is not installed")
    keys, wanted = DIFFUSION[name]
    code, found, err = estimate(keys, "--batch", "2", "--steps", "1")
    assert code == 0, err
    said = " ".join(found["assumptions"])
    for words in wanted:
        assert words in said, said


# ---- what is refused ----


def test_what_is_not_known_is_refused_with_what_to_do(estimate, tmp_path):
    def refused(configuration, *options):
        code, _, err = estimate(configuration, *options)
        assert code == 2 and "Traceback" not in err, err
        return err

    unknown = refused({"model_type": "martian", "auto_map": {"AutoModel": "modeling.Martian"}})
    assert "does not know the model_type 'martian'" in unknown and "is not run here" in unknown and "gapless estimate script.py" in unknown
    # The type is known, and the class is not: another class of that type may be another model.
    own = refused({**LLAMA, "architectures": ["MartianForCausalLM"], "auto_map": {"AutoModelForCausalLM": "modeling.MartianForCausalLM"}})
    assert "MartianForCausalLM is code that comes with the checkpoint" in own and "gapless estimate script.py" in own
    assert "has no model_type" in refused({"hidden_size": 64})
    assert "64 positions that the model has learned" in refused({"model_type": "gpt2", "n_positions": 64, "n_layer": 1}, "--seq", "65")
    assert "cannot make this model" in refused({**LLAMA, "num_attention_heads": 7, "head_dim": None, "hidden_act": "martian"})
    pipeline = tmp_path / "pipeline"
    (pipeline / "unet").mkdir(parents=True)
    (pipeline / "unet" / "config.json").write_text("{}")
    (pipeline / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    assert f"name the one that is to run: {pipeline / 'unet'}" in refused(pipeline)
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    assert "cannot be read as JSON" in refused(broken)


def test_flags_that_make_no_sense_are_refused_before_anything_starts(estimate, tmp_path):
    def refused(*options, configuration=LLAMA):
        code, _, err = estimate(configuration, *options)
        assert code == 2, err
        return err

    assert "--batch 0 runs nothing" in refused("--batch", "0")
    assert "no meaning with --infer" in refused("--infer", "--optimizer", "sgd")
    assert "--precision mixed" in refused("--precision", "mixed")
    assert "--optimizer adamw8bit" in refused("--optimizer", "adamw8bit")
    assert "--nproc is for scripts" in refused("--nproc", "2")
    file = tmp_path / "train.py"
    file.write_text("print('here')")
    assert "is a script: its own arguments follow `--`" in refused("--batch", "8", configuration=os.fspath(file))
