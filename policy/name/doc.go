// Package name has what every part of the gateway must mean the same by: a host ([Name], which [Parse] alone makes), a
// pattern of hosts ([ParsePattern]), ranges of addresses ([ParseCIDR], [Ranges]) and those that no policy opens
// ([NewProtected]), ports ([PortSet]), why something was decided ([Reason]), and a value that must not be shown ([Secret]).
//
// It is a leaf: it imports nothing of this module. The zero Name and the zero Pattern match nothing, and a nil *[Protected]
// protects every address.
package name
