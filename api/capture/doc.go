// Package capture bounds what the API keeps of the output of boxes while it makes an answer of it. A box chooses how much
// it prints, and many of its commands may print at the same time: so everything that is answered as a whole, whatever
// endpoint answers it, comes out of one [Budget].
package capture
