"""Evidence for auditors: one bundle of everything that shows what was governed in a period."""
