"""Names of cells, and words to find: each a single word, and none of them in both lists."""

_ROOMS = """Attic Bakery Balcony Barn Bathroom Bedroom Cabin Cellar Chapel Chamber Closet Corridor Courtyard Den
Foundry Gallery Garage Garden Greenhouse Gym Hall Kitchen Laboratory Larder Laundry Library Loft Lounge Mill Nursery
Office Pantry Parlour Patio Porch Reception Sauna Scullery Shed Stable Staircase Storeroom Studio Study Terrace Theatre
Tower Vault Veranda Workshop"""

_WORDS = """acorn amber anchor apple arrow basket beacon bell birch bottle bridge butter candle carrot castle cedar
cherry cloud clover copper coral cotton crystal daisy drum ember falcon feather fern flint garnet ginger hazel honey
ivory jasmine kettle lantern lemon linen magnet maple marble needle nutmeg olive onyx orchid pebble pepper"""

ROOMS = tuple(_ROOMS.split())
WORDS = tuple(_WORDS.split())
