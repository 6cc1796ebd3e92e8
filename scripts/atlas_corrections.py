"""What the sources of the atlas get wrong, leave ambiguous or lost: corrections by hand, used by `build_atlas.py`."""

from __future__ import annotations

import re

MIN_COUNTRY_POPULATION = 500  # leaves out the uninhabited
MIN_CITY_POPULATION = 150_000  # below it, the source mostly lists districts
DOMINANT_CITY = 3  # of two cities with one name, one stays when it is this many times larger

NOT_ALIASES = {"West Bank", "Virgin Islands", "America", "The Holy See"}
COUNTRY_NAMES = {"The Netherlands": "Netherlands", "Bonaire, Saint Eustatius and Saba": "Caribbean Netherlands"}
CAPITALS_LEFT_OUT = {
    "Sri Lanka": "the official capital is Sri Jayawardenepura Kotte",
    "Israel": "contested",
    "Palestinian Territory": "contested",
}
CITIES_LEFT_OUT = {  # contested, or a part of another city
    "Jerusalem", "West Jerusalem", "East Jerusalem", "Sevastopol", "Simferopol", "Kerch", "Yevpatoriya", "Brooklyn",
    "Queens", "Manhattan", "The Bronx", "Staten Island", "Puxi", "Pudong", "New Territories", "Kowloon", "Minhang",
    "Songjiang", "Jiading", "Bao'an", "Camayenne", "Iztapalapa",
}  # fmt: skip
DOMAINS_LEFT_OUT = {"Saint Barthélemy", "Saint Martin"}  # the source gives Guadeloupe's
ROYAL_ANTHEMS = {"Sweden", "Norway", "Denmark", "Thailand", "Fiji"}  # listed in place of the national one
GENERIC_ANTHEM = re.compile(r"national anthem|himno nacional|\bhymn(e|us|ni)?$|national song|^himnusz$", re.I)
POINT_ALIASES = {"Mount McKinley": ["Denali"], "Aoraki/Mount Cook": ["Mount Cook", "Aoraki"]}
NOT_A_UNIT = {"Gold"}  # Zimbabwean Gold: "Gold" alone is an element

ELEMENT_ALIASES = {"Aluminum": ["Aluminium"], "Cesium": ["Caesium"], "Sulfur": ["Sulphur"], "Tungsten": ["Wolfram"]}
# Disputed or mixed up in the source: no discovery facts at all.
DISCOVERIES_LEFT_OUT = {"Beryllium", "Platinum", "Neodymium", "Nihonium", "Radon", "Seaborgium"}
DISCOVERER_SPELLING = {
    "Fredrich": "Friedrich", "Humphrey Davy": "Humphry Davy", "Marguerite Derey": "Marguerite Perey",
    "Charles Hatchet": "Charles Hatchett", "A. Crawford": "Adair Crawford", "Smithson Tenant": "Smithson Tennant",
    "J.L. Soret": "Jacques-Louis Soret", "C.F. Aver von Welsbach": "Carl Auer von Welsbach",
}  # fmt: skip
PARTS_OF = {
    "England": "United Kingdom", "Scotland": "United Kingdom", "Great Britain": "United Kingdom",
    "Northern Ireland": "United Kingdom", "West Germany": "Germany", "Korea": "South Korea", "British India": "India",
    "Trinidad": "Trinidad and Tobago", "Bosnia": "Bosnia and Herzegovina", "German-occupied Poland": "Poland",
    "Guadeloupe Island": "Guadeloupe", "Republic of Macedonia": "North Macedonia", "Cyprys": "Cyprus",
}  # fmt: skip
EMPIRES = {  # birth places in states that are no more, where the source does not say what is there now
    "Riga Latvia": "Latvia", "St. Petersburg": "Russia", "Kronshtadt": "Russia", "Usman Russia": "Russia",
    "Privolnoye": "Russia", "Vienna": "Austria", "Budapest": "Hungary",
}  # fmt: skip
NO_COUNTRY = {"Tibet"}

LAUREATES = {  # names that no rule untangles
    "Lord Rayleigh (John William Strutt)": "Lord Rayleigh",
    "Baroness Bertha Sophie Felicita von Suttner, née Countess Kinsky von Chinic und Tettau": "Bertha von Suttner",
    "Count Maurice (Mooris) Polidore Marie Bernhard Maeterlinck": "Maurice Maeterlinck",
    "The (Theodor) Svedberg": "Theodor Svedberg",
    "Lars Olof Jonathan (Nathan) Söderblom": "Nathan Söderblom",
    "Petrus (Peter) Josephus Wilhelmus Debye": "Peter Debye",
    "Cecil of Chelwood, Viscount (Lord Edgar Algernon Robert Gascoyne Cecil)": "Robert Cecil",
    "Lord (John) Boyd Orr of Brechin": "John Boyd Orr",
    "Earl (Bertrand Arthur William) Russell": "Bertrand Russell",
    "Lord (Alexander R.) Todd": "Alexander R. Todd",
    "Il´ja Mikhailovich Frank": "Ilya Mikhailovich Frank",
    "The 14th Dalai Lama (Tenzin Gyatso)": "Tenzin Gyatso",
    "Albert Arnold (Al) Gore Jr.": "Al Gore",
    "Tsung-Dao (T.D.) Lee": "Tsung-Dao Lee",
    "Prince Louis-Victor Pierre Raymond de Broglie": "Louis de Broglie",
}
LAUREATE_ALIASES = {"Tenzin Gyatso": ["14th Dalai Lama"], "Lord Rayleigh": ["John William Strutt"]}
DOUBLE_SURNAMES = {
    "Mario Vargas Llosa", "Jean-Marie Gustave Le Clézio", "Rigoberta Menchú Tum", "Aung San Suu Kyi", "John Boyd Orr",
    "Oscar Arias Sánchez", "Gabriel García Márquez", "Alfonso García Robles", "Adolfo Pérez Esquivel",
    "Carlos Saavedra Lamas",
}  # fmt: skip
ORGANISATION = re.compile(
    r"Comité|^Institut |^Bureau|Office|Committee|Council|United Nations|Organization|Agency|Ligue|Amnesty|Médecins"
    r"|Physicians|Pugwash|Grameen|Panel|Campaign"
)
INCOMPLETE_PRIZES = {("1909", "peace")}  # one of two winners is missing
PLACE_SPELLING = {
    "Mount Verno NY": "Mount Vernon", "Petilla de Aragó": "Petilla de Aragón", "Casteldàwson": "Castledawson",
    "s Graveland": "'s-Graveland", "'s Graveland": "'s-Graveland", "Hofei Anhwei": "Hofei (now Hefei)",
    "the Hague": "The Hague", "Palo Alto CF": "Palo Alto", "Berne": "Bern",
    "Frankfurt-on-the-Main": "Frankfurt am Main", "Torino": "Turin", "Bombay": "Bombay (now Mumbai)",
    "Calcutta": "Calcutta (now Kolkata)", "Kingston ON": "Kingston", "St. Petersburg": "Saint Petersburg",
    "Trichinopoly": "Trichinopoly (now Tiruchirappalli)", "Amoy": "Amoy (now Xiamen)", "Pusan": "Pusan (now Busan)",
    "Thorshavn": "Tórshavn", "Langford Grove Maldon Essex": "Langford Grove", "New York NY": "New York City",
}  # fmt: skip
PLACES_LEFT_OUT = {"MA", "NY", "DC", "Nam Ha province", "Kingston Hill", "Landsberg"}
REGION_SUFFIX = re.compile(
    r"( [A-Z]{2}| Alberta| Java| Essex| Latvia| Russia| Sardinia| Sicily| Belorussia| Banat| Tamil Nadu| near .*)$"
)
# American and Canadian birth places name a state, our cities do not: only these are surely the city of that name.
SURELY_THE_CITY = {
    "New York NY", "Chicago IL", "Boston MA", "Los Angeles CA", "San Francisco CA", "Philadelphia PA", "Pittsburgh PA",
    "Cleveland OH", "Detroit MI", "St. Louis MO", "Seattle WA", "Denver CO", "Baltimore MD", "Milwaukee WI",
    "Atlanta GA", "Omaha NE", "San Diego CA", "Fort Worth TX", "Washington DC", "Oakland CA", "Toronto", "Montreal",
}  # fmt: skip
