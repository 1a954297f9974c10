"""The maths: pure functions of tensors. Imports torch and nothing of ours.

Shape suffixes in this room: N trainable tokens of a batch, laid flat; B answers; T token slots of the padded form.
"""
