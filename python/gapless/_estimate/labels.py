"""Labels for the losses that models of transformers compute themselves, by the purpose of the class."""

from collections.abc import Iterator
from typing import Any

from .recipe import Field, Recipe, Same
from .sizes import Sizes, own, side_of


def labelled(model: Any, parameters: Any, inputs: Recipe, sizes: Sizes) -> "Iterator[Recipe]":
    """Labels that these inputs may have, the likeliest first; none at the end."""
    name = type(model).__name__
    if "return_loss" in parameters and "labels" not in parameters:
        yield {"return_loss": True}
    if "labels" in parameters:
        yield from _labels(model, name, parameters, inputs, sizes)
    if name.endswith("ForQuestionAnswering") and "start_positions" in parameters:
        yield {"start_positions": Field((sizes.batch,), "value", 1), "end_positions": Field((sizes.batch,), "value", 2)}
    if "future_values" in parameters and "future_values" not in inputs and "past_values" in inputs:
        ahead = own(model.config, ("prediction_length",)) or 24
        yield {"future_values": Field((inputs["past_values"].shape[0], ahead, *inputs["past_values"].shape[2:]))}
    yield {}


def _labels(model: Any, name: str, parameters: Any, inputs: Recipe, sizes: Sizes) -> "Iterator[Recipe]":
    classes = own(model.config, ("num_labels",)) or 2
    of_sample = {"labels": Field((sizes.batch,), "numbers", 0, classes)}
    if "decoder_input_ids" in inputs:
        # Models that are given labels make the decoder's inputs from them.
        target = inputs["decoder_input_ids"]
        yield {"labels": target, "decoder_input_ids": None}
        yield {"labels": Same("decoder_input_ids")}
    of_parts = name.endswith(("TokenClassification", "FrameClassification"))
    if name.endswith(("Classification", "MultipleChoice", "Prediction", "XVector", "Retrieval")) and not of_parts:
        yield of_sample
    if name.endswith("ForPreTraining") and "next_sentence_label" in parameters:
        yield {"labels": Same("input_ids"), "next_sentence_label": Field((sizes.batch,), "value")}
    if name.endswith("ForPreTraining") and "sentence_order_label" in parameters:
        yield {"labels": Same("input_ids"), "sentence_order_label": Field((sizes.batch,), "value")}
    ids = inputs.get("input_ids")
    if ids is not None and name.endswith(("TokenClassification", "ElectraForPreTraining")):
        yield {"labels": Field(ids.shape, "numbers", 0, classes if name.endswith("TokenClassification") else 2)}
    elif name.endswith("ForCTC"):
        yield {"labels": Field((sizes.batch, 32), "numbers", *sizes.ordinary_tokens(model))}
    elif name.endswith("SemanticSegmentation"):
        yield {"labels": Field((sizes.batch, *side_of(model.config, sizes)), "numbers", 0, classes)}
    elif ids is not None and "Classification" not in name:
        yield {"labels": Same("input_ids")}
    elif ids is None:
        yield of_sample
