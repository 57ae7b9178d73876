<!DOCTYPE html>
<html>
<head><style>body { color: #333; margin: 0 auto }</style></head>
<body>
<?php
declare(strict_types=1);

namespace Shop;

/** One line of an order. */
final class Line
{
    public function __construct(private string $name, private int $count, private float $price)
    {
    }

    public function total(): float
    {
        return $this->count * $this->price; // before tax
    }

    public function __toString(): string
    {
        return sprintf("%-20s %3d × %8.2f", $this->name, $this->count, $this->price);
    }
}

$lines = array_map(fn ($row) => new Line(...$row), [['tea', 2, 3.5], ["rice\n", 1, 0x10 / 4]]);
foreach ($lines as $number => $line) {
    echo "<li id=\"line-{$number}\">", htmlspecialchars((string) $line), '</li>', PHP_EOL;
}
?>
<script>const total = document.querySelectorAll("li").length; console.log(`lines: ${total}`);</script>
</body>
</html>
