"""The live page, and releases by HTTP: :func:`rillet.web.app.make_app` over the files of a run.

**Privacy.** Post-processing.  Nothing here can import what touches raw data: it opens
``releases.db``, ``about.json`` and ``progress.json``, which are public.
"""
