"""``python -m train study``: many encodings, several seeds, one recipe, and a page that says what the numbers allow.

config.py what to run · cells.py training one cell · protocols.py and evaluate.py testing it · results.py the one
file of numbers · stats.py means, intervals, ranks · summary.py lines of the tables · advice.py the recommendations ·
pictures.py, page.py and markdown.py what people read · cli.py the command.
"""
