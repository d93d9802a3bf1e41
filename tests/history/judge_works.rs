//! The checker finds what it is there to find, in histories made up for it.
