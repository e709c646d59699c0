module github.com/postrider/postrider/bench

go 1.26.0

require github.com/postrider/postrider v0.0.0

replace github.com/postrider/postrider => ../
