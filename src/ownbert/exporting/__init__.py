"""Export of trained folders to files that run without ownbert: ONNX, OpenVINO, torch."""
