"""The pages. Thin: what they show is read by web/live/, web/history/ and pages/table.py; what they do is done by
web/services/. Each file is one page, or one part of the site."""
