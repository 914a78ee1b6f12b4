// Package name has the types that all parts of the gateway share: host names ([Name], made by [Parse] only), patterns of hosts
// ([ParsePattern]), ranges of addresses ([ParseCIDR], [Ranges]), protected ranges ([NewProtected]), ports ([PortSet]), reasons of
// decisions ([Reason]), and values that must not be shown ([Secret]).
//
// It imports no other package of this module. The zero Name and the zero Pattern match no host, and a nil *[Protected] protects
// every address.
package name
