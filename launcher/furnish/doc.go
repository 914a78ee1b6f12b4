// Package furnish writes into the root of a new box what makes it this box: its first process, user, names and the
// certificates it trusts, in every place where programs look for them. The image may be anybody's: links lead nowhere
// outside of the root, and nothing is read that does not end.
package furnish
