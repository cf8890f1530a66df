"""Numbers that have changed: learners' notebooks and records of solved exercises still have the old ones.

Lesson 11 became 11a, 11b and 11c; ``start("11")``, ``check("11.3", f)`` and a record of "11.3" go on working.
Parts of lessons 02, 13, 14 and 15 became 02b, 13b, 14b and 15b: ``start("02")`` finds the words of both, which an old
notebook has.
"""

# lesson: the lessons that it became
LESSONS = {
    "02": ("02", "02b"),
    "11": ("11a", "11b", "11c"),
    "13": ("13", "13b"),
    "14": ("14", "14b"),
    "15": ("15", "15b"),
}

# exercise: its new id; the old one is never given again
EXERCISES = {
    "02.3": "02b.3",
    "02.4": "02b.1",
    "02.5": "02b.2",
    "11.1": "11a.1",
    "11.2": "11a.2",
    "11.3": "11b.1",
    "11.4": "11a.3",
    "11.5": "11b.3",
    "13.4": "13b.1",
    "13.5": "13b.2",
    "14.5": "14b.1",
    "15.5": "15b.1",
}
