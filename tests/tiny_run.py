"""Arguments that tests of the application share."""

# a recipe that trains in a second: a compact net on the real digits, a few batches of them
TINY = [
    "--config=configs/vision.yaml",
    "--config=configs/overlay/debug.yaml",
    "--model=configs/model/vision_resnet9.yaml",
    "--model.net.widths=[4,8]",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
]
