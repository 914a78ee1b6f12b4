// Package pages opens a bbolt file once it has read every page of it and found it whole.
package pages
