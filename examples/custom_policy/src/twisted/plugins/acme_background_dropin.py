from acme_background import background as background
