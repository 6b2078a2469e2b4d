"""Messages of mistakes."""

MESSAGES = {
    "no such folder: {}": "目录不存在：{}",
    "no such file: {}": "文件不存在：{}",
    "{}: there is no such file or folder; check its name": "{}：没有这个文件或目录，请检查名称",
    "{}: permission denied; check whose it is, or choose another place": "{}：没有权限；请检查属主，或换个位置",
    "{}: it is a folder, a file is needed": "{}：这是目录，这里需要文件",
    "{} already holds a model; continue with --resume, start anew with --overwrite, or choose another folder": "{} 里已经有模型：用 --resume 继续，用 --overwrite 重新开始，或换一个目录",
    "{} is a file; -o must name a folder": "{} 是文件；-o 须指定目录",
    "missing option '{}'; see {} --help": "缺少选项 {}；见 {} --help",
    "missing argument '{}'; see {} --help": "缺少参数 {}；见 {} --help",
    "no such option: {}; see {} --help": "没有选项 {}；见 {} --help",
    "no such command '{}'; see {} --help": "没有命令 {}；见 {} --help",
    "no token store given; make one with: ownbert prepare": "没有给出词元库；请先用 ownbert prepare 生成",
    "out of memory; take smaller batches (--batch-tokens) or a smaller model": "内存不足；请减小 batch（--batch-tokens）或换更小的模型",
    "interrupted; nothing half-written is left": "已中断；没有留下写了一半的文件",
}
