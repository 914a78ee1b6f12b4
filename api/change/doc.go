// Package change describes changes for the audit trail: names that were added, removed or changed. A description never contains
// secret values, nor the texts of matches, which may be secret.
//
// A description is complete up to [Whole] bytes of names. The rest is counted.
package change
