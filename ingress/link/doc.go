// Package link makes and checks signed URLs: addresses that let whoever has them use some paths of one public URL with some
// methods, until a time. What a link permits is in its signature alone; nothing is stored. Pure: the clock is given.
package link
