"""Changes of the federation and the word of a site's operator: proposals, consent, admissions, convictions."""
