"""Export a checkpoint: `python scripts/export.py --ckpt best.ckpt --formats onnx torchscript --out exported/`."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> int:
    """Write artifacts that were loaded back, compared and timed; 1 where one is wrong."""
    parser = argparse.ArgumentParser(description="Export a trained net, and check what leaves.")
    parser.add_argument("--ckpt", required=True, help="a checkpoint, where its run left it")
    parser.add_argument(
        "--formats",
        nargs="+",
        default=["onnx", "torchscript"],
        help="onnx, torchscript, torchscript_script, torch_export, aotinductor, executorch (onnx torchscript)",
    )
    parser.add_argument("--out", type=Path, default=Path("exported"), help="folder to write to (exported)")
    parser.add_argument(
        "--from_pixels", action="store_true", help="of a vision classifier: normalisation and softmax inside"
    )
    parser.add_argument("--opset", type=int, help="of ONNX (that of the installed torch)")
    args = parser.parse_args()

    from lightning_app.export import deliver, table

    try:
        verdicts = []
        for verdict in deliver(args.ckpt, args.formats, args.out, from_pixels=args.from_pixels, opset=args.opset):
            print(f"{verdict.file}: {verdict.told}", file=sys.stderr, flush=True)
            verdicts.append(verdict)
    except ValueError as error:
        print(f"export.py: error: {error}", file=sys.stderr)
        return 2
    print("\n".join(table(verdicts)))
    print(f"\nwritten to {args.out}: report.md, model.json; predict.py there needs nothing else of this repository")
    return int(any(verdict.problem for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
