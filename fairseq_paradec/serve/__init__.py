"""``paradec serve``: model folders behind HTTP, batches that form themselves, a page that shows it.

``settings.py`` is what the command says, ``fleet.py`` the models, ``scheduler.py`` decodes what
waits together, ``work.py`` makes sentences of a request and its answer of their translations,
``app.py`` has the routes, ``guard.py`` the limits that a request meets, ``run.py`` the processes.
"""
