"""The page of `stepscope serve`: the records below a folder, live, and nothing else.

    library   which folders and files may be read
    views     what there is to see, as HTML and charts: the list, a record, several runs
    pages     views that are kept, and made again when their files change
    apart     the view of a large run, made in a process of its own
    guard     who may ask for what, and what every answer tells the browser
    app       the addresses
    server    the socket, and the server on it

In the browser `live.js` asks now and then for what is new, and changes only that.
"""
