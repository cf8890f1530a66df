"""The lesson pipeline: one bilingual source in, executed notebooks in two languages out.

    source.py     the percent-format file -> Meta and Cells
    course.py     which lessons exist, in which order, and which notebook comes from which source
    prose.py      Chinese line joining, hashes of prose, what counts as prose
    codecells.py  plain Python only, equality up to comments, taking solutions out
    texts.py      the words of headers and footers, in both languages
    compose.py    a source and a language -> a notebook without outputs
    execute.py    runs it in a clean kernel, makes the outputs reproducible
    photos.py     a picture of each widget, taken in Chromium
    stamps.py     is a committed notebook still what its source gives?
    build.py      puts them together, runs only what is stale
    check.py      the rules (check_source.py, check_notebook.py, glossary.py)
    counts.py     what a lesson holds, in figures: words before its first picture, visuals, labels
    nbval_rules.py  the pytest plugin for running the committed notebooks

Read docs/lessons.md for the format.
"""
