"""
Spark finds this by its name: C{spark.read.format("admission")} reads what a
server has recorded.
"""
