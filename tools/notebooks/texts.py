"""The words of headers and footers, in both languages."""

TEXTS = {
    "en": {
        "colon": ": ",
        "comma": ", ",
        "badge": "▶ Open in Colab",
        "not_on_index": "  # not on the package index yet: pip takes it from the repository",
        "unreachable": (
            "minikv cannot be reached at {repository}. Upload the repository's ZIP here, run "
            '%pip install "./minikv-main.zip[engine]", then run this cell again.'
        ),
        "switch": "中文",
        "lesson_title": "{number} · {title}",
        "exercise_title": "{number} · Exercises: {title}",
        "solution_title": "{number} · Solutions: {title}",
        "before": "Before you start",
        "needs": "Needs",
        "nothing": "nothing before it",
        "minutes": "about {minutes} minutes",
        "minutes_in_all": "about {minutes} minutes, exercises included",
        "rooms": "In the package",
        "t4": "On a free Colab T4",
        "paper": "On paper",
        "lesson": "Lesson",
        "exercise": "Exercises",
        "solution": "Solutions",
        "next": "Next",
        "last": "This is the last one. Back to the start",
    },
    "zh": {
        "colon": "：",
        "comma": "、",
        "badge": "▶ 在 Colab 中打开",
        "not_on_index": "  # 尚未发布到软件包索引：由 pip 从代码仓库安装",
        "unreachable": (
            "无法从 {repository} 安装 minikv。请把仓库的 ZIP 上传到这里，运行 "
            '%pip install "./minikv-main.zip[engine]"，然后重新运行本单元。'
        ),
        "switch": "English",
        "lesson_title": "{number} · {title}",
        "exercise_title": "{number} · 练习：{title}",
        "solution_title": "{number} · 参考答案：{title}",
        "before": "开始之前",
        "needs": "先修课",
        "nothing": "无",
        "minutes": "约 {minutes} 分钟",
        "minutes_in_all": "约 {minutes} 分钟（含练习）",
        "rooms": "对应代码",
        "no_colab": "打不开 Colab？",
        "no_colab_way": "在自己的电脑上就能学完，办法见[第 {number} 课]({link})“卡住了怎么办”一节",
        "t4": "在免费的 Colab T4 上",
        "paper": "纸笔练习",
        "lesson": "课文",
        "exercise": "练习",
        "solution": "参考答案",
        "next": "下一课",
        "last": "这是最后一课。回到开头",
    },
}
