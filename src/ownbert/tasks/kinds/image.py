"""One label per image."""

from ownbert.tasks.kinds import TaskKind

KIND = TaskKind(
    task="ownbert.vision.image_task:ImageTask",
    help="""One label per image, with a ViT: a new one or one from a folder.

        A folder with one subfolder of images per class (requires the extra vision), IDX files
        as in MNIST, or an .npz file with the arrays images and labels. Each time a training
        image is used, it is randomly shifted and, with --flip, mirrored.

        Example: ownbert finetune image --train images/train --dev images/dev
        -o runs/images""",
    settings=(
        *(
            "labels_per_class",
            "positive",
            "threshold",
            "image_size",
            "patch",
            "hidden_size",
            "layers",
            "heads",
        ),
        *("flip", "shift", "crop", "class_weights", "label_smoothing"),
    ),
    without=(
        *("text_column", "second_column", "label_column", "group", "time_column"),
        *("encoding", "max_length"),
        *("pretrain_steps", "adversarial", "layer_gate", "attention_blur"),
    ),
    files=("preprocessor_config.json",),
    example=("the bytes of an image in base64",),
    pipeline="image-classification",
)
