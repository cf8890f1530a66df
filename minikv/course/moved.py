"""Numbers that have changed: learners' notebooks and records of solved exercises still have the old ones.

Lesson 11 became 11a, 11b and 11c; ``start("11")``, ``check("11.3", f)`` and a record of "11.3" go on working.
"""

# lesson: the lessons that it became
LESSONS = {"11": ("11a", "11b", "11c")}

# exercise: its new id
EXERCISES = {"11.1": "11a.1", "11.2": "11a.2", "11.3": "11b.1", "11.4": "11a.3", "11.5": "11b.3"}
