"""Images: files, pixels, augmentation, ViT, the task ``image``, explanations.

Other parts of OwnBERT find it in the tables of families and tasks, and in the commands.
"""
