module github.com/stagedoor/walrelay

go 1.25.0
