"""Continue a text: `python scripts/generate.py --ckpt best.ckpt --prompt "def "`."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> int:
    """Write the continuation as it is made."""
    parser = argparse.ArgumentParser(description="Continue a text with a trained language model.")
    parser.add_argument("--ckpt", required=True, help="a checkpoint of a language model")
    parser.add_argument("--prompt", default="", help="the text to continue")
    parser.add_argument("--max_new_tokens", type=int, default=300, help="tokens to make at most (300)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token each time (0.8)")
    parser.add_argument("--top_k", type=int, help="only the k likeliest tokens")
    parser.add_argument("--top_p", type=float, default=1.0, help="only the likeliest of together this probability (1)")
    parser.add_argument("--min_p", type=float, default=0.0, help="only those with this share of the likeliest's (0)")
    parser.add_argument("--stop", nargs="*", default=[], help="texts that end it")
    parser.add_argument("--seed", type=int, help="for the same text again")
    parser.add_argument(
        "--when_full", choices=["roll", "error"], default="roll", help="beyond the trained length (roll)"
    )
    options = vars(parser.parse_args())
    path, prompt = options.pop("ckpt"), options.pop("prompt")

    from lightning_app.checkpoints import load_task

    try:
        task = load_task(path)
        if not hasattr(task, "stream_texts"):
            raise ValueError(f"{path} is of a {type(task).__name__}, which writes no text")
        print(prompt, end="", flush=True)
        shown = ""
        for (text,) in task.stream_texts([prompt], **options):
            # half a character, or what may become a stop text, waits for the next token
            ready = text.rstrip("\N{REPLACEMENT CHARACTER}")
            print(ready[len(shown) :], end="", flush=True)
            shown = ready
        print()
    except ValueError as error:
        print(f"generate.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
