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
    parser.add_argument("--quantize", metavar="METHOD", help="int8 too: dynamic, static or weight_only")
    parser.add_argument("--observer", default="histogram", help="of static: histogram or min_max (histogram)")
    parser.add_argument("--per_tensor", action="store_true", help="one scale for each weight, not one a channel")
    parser.add_argument("--calibration_batches", type=int, default=16, help="training batches that static sees (16)")
    parser.add_argument("--skip_modules", nargs="+", default=[], help="names in the net of what stays float32")
    parser.add_argument(
        "--max_drop",
        type=float,
        default=0.01,
        help="what int8 may lose: of an accuracy as it is, else a share (0.01)",
    )
    parser.add_argument("--report_only", action="store_true", help="exit with 0 though int8 is worse or slower")
    args = parser.parse_args()

    from callbacks.quantization.settings import Quantization
    from lightning_app.export import deliver, table

    try:
        settings = None
        if args.quantize:
            settings = Quantization(
                args.quantize,
                observer=args.observer,
                per_channel=not args.per_tensor,
                calibration_batches=args.calibration_batches,
                skip_modules=tuple(args.skip_modules),
                max_drop=args.max_drop,
            )
        verdicts = []
        for verdict in deliver(
            args.ckpt, args.formats, args.out, from_pixels=args.from_pixels, opset=args.opset, quantization=settings
        ):
            print(f"{verdict.file}: {verdict.told}", file=sys.stderr, flush=True)
            verdicts.append(verdict)
    except ValueError as error:
        print(f"export.py: error: {error}", file=sys.stderr)
        return 2
    print("\n".join(table(verdicts)))
    print(f"\nwritten to {args.out}: report.md, model.json; predict.py there needs nothing else of this repository")
    return int(any(verdict.problem or (verdict.cost and not args.report_only) for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
