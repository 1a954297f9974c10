"""Maths answers, read and compared exactly: nothing rounded or executed, sizes bounded before the arithmetic."""
