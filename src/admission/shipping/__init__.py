"""
Closed files of a recording go to another file system: a bucket, a mounted disk, HDFS.  It runs beside the server, never
in its process.
"""
