"""A trained folder as a file that other programs run without ownbert: ONNX, OpenVINO, torch."""
