"""Changes of the federation and the consent of a site's operator: proposals, consent, admissions, convictions."""
