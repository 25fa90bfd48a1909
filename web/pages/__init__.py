"""The pages. Thin: what they show is read by web/snapshot.py, listing.py and history.py; what they do is done by
web/services.py. Each file is one page, or one part of the site."""
