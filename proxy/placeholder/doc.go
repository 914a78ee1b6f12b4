// Package placeholder finds placeholder tokens in a request and replaces them by values. Every part of a request is
// searched for tokens; only in header values are they replaced.
package placeholder
