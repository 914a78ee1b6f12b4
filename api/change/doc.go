// Package change describes changes for the audit trail: names that were added, removed or changed. A description contains
// neither secret values nor the texts of matches, which may be secret.
//
// A description contains at most [Whole] bytes of names. Further names are only counted.
package change
