"""Images and their labels: files, pixels and augmentation."""
