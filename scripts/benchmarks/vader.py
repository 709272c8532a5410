"""The VADER lexicon (Hutto & Gilbert, 2014) on the test split of a sentiment recipe: what fine-tuning is compared with.

A text counts as positive from a compound score of 0.05 and as negative from -0.05, as its authors advise.
"""

import argparse
from typing import Any

from lightning_app.cli import build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--config", default="configs/text.yaml", help="a recipe on SentimentDataModule")


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row."""
    try:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
    except ModuleNotFoundError as error:
        raise SystemExit("this needs the lexicon: pip install vaderSentiment==3.3.2") from error
    from sklearn.metrics import accuracy_score, f1_score

    datamodule = build(["test", "--config", args.config]).datamodule
    datamodule.prepare_data()
    table = datamodule.read_splits()["test"]
    analyzer = SentimentIntensityAnalyzer()
    scores = [analyzer.polarity_scores(text)["compound"] for text in table.texts]
    predictions = [2 if score >= 0.05 else 0 if score <= -0.05 else 1 for score in scores]
    assert datamodule.class_names == ["negative", "neutral", "positive"]
    return [
        {
            "test texts": len(table),
            "accuracy": float(accuracy_score(table.labels, predictions)),
            "macro F1": float(f1_score(table.labels, predictions, average="macro")),
        }
    ]
