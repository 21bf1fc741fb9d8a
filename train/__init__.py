"""The training application: ``python -m train fit|validate|test|predict --config configs/...``.

It is a program on top of the library and no part of the wheel. Importing it registers every vispe model in timm.
"""
