"""Containers on the client's machine: a CDI device with which a container uses an attachment.

An attachment that is offered so has a helper (`service.py`), which writes the CDI spec. The createRuntime hook of each
container with that device asks the helper, as the hook of a share asks the daemon: another process, which may be
killed, looks at the image (`image.py`), and the helper enters the container's network namespace to listen there
(`netns.py`). The connections of its programs go to the client relay one by one. No library of gpushare is in the
container: what a share may do is held on the node.
"""
