// Package spec has the JSON of policies and header rules, which stand in the bodies of several endpoints, in every form
// that it may be written in.
package spec
