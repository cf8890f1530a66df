"""vLLM's start-up log, judged: do its GiB and its tokens belong together?"""
