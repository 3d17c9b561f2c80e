"""Commands of a site's samples: inspected, partitioned and split before anything trains on them."""
