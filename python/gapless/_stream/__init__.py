"""gapless.stream(): models that are larger than their budget for weights. `api` is what users call; `plan` and `order`
are pure; `runner` decides what is on the card; `card` does the copies; `items` finds the weights of a model."""
