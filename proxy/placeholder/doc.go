// Package placeholder finds the tokens of placeholders in a request and puts values in their place. A token is looked for in
// every part of a request; only in the value of a header does it stand for its value.
package placeholder
