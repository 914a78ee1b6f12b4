// Fetch is a program that knows nothing of a gateway: it prints what a URL holds.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	res, err := http.Get(os.Args[1])
	if err == nil {
		_, err = io.Copy(os.Stdout, res.Body)
		res.Body.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
